"""The commands besides training: a function of the same name in each module.

Its signature defines the flags, and its docstring is the help.
"""

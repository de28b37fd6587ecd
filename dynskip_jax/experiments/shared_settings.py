"""Declare the help text, bounds and needs of settings that several experiments share.

A group of settings adds the type and the default: `epochs: int = shared.epochs(20)`.
"""

from functools import partial

from dynskip_jax.settings import ON, Other, path_setting, setting
from dynskip_jax.training.model_names import CHOOSING, WITH_K

# --- Data ---

data = partial(path_setting, help="Folder or file of the data; by default it is looked for.")
dataset = partial(setting, help="Name of the corpus, or the format of your own files.")
length = partial(setting, help="Length of the longest sequence.")
train_examples = partial(setting, help="Number of training examples.", at_least=1)
split_seed = partial(setting, help="Seed that draws missing splits from train.", at_least=0)
min_count = partial(setting, help="Words seen less often in train are unknown.", at_least=1)
max_length = partial(setting, help="Crop texts to this many words.", at_least=1)
buckets = partial(
    setting, help="Number of lengths to which batches are padded; by default few for small data.", at_least=1
)
unknown_rate = partial(
    setting,
    help="In training, read words that occur once in train as unknown at this rate.",
    at_least=0,
    below=1,
)
embeddings = partial(path_setting, help="File of GloVe or word2vec vectors; it sets the embedding size.")

# --- Model ---

features = partial(setting, help="Size of every layer's state.", at_least=1)
num_layers = partial(setting, help="Number of layers; the last one has the time skip.", at_least=1)
embedding_features = partial(setting, help="Size of a word's embedding.", at_least=1)
output = partial(setting, help="Predict tags by a CRF, or by a softmax at each word (for many tags).")
char_features = partial(setting, help="Size of a character's embedding.", at_least=1)
dropout = partial(
    setting, help="Dropout rate on each layer's input and before the output layer.", at_least=0, below=1
)
dropout_inputs = partial(
    setting, help="Dropout rate on the first layer's input; by default --dropout.", at_least=0, below=1
)
dropout_words = partial(setting, help="Rate at which whole words are dropped.", at_least=0, below=1)
dropout_weights = partial(setting, help="Dropout rate on recurrent weights.", at_least=0, below=1)
locked = partial(setting, help="Drop the same features at all steps of a sequence (variational dropout).")
zoneout = partial(
    setting,
    help="Rate at which units of a state keep their value: one rate, or those of h and c.",
    at_least=0,
    below=1,
)

# --- Agent ---

mix = partial(
    setting,
    help="λ, the weight of the skipped-to state against the previous one.",
    at_least=0,
    at_most=1,
    sweep=True,
    needs={"model": WITH_K},
)
agent_init = partial(setting, help="Initial weights of the time skip; normal: N(0, 0.3), biases 0.1.")

# --- Training ---

epochs = partial(setting, help="Passes over the training data; a resumed run may have more.", at_least=1)
batch_size = partial(setting, help="Examples per training step.", at_least=1)
learning_rate = partial(setting, help="Initial learning rate.", above=0, sweep=True)
clip = partial(
    setting,
    help="Largest norm of the gradient; agents that learn from rewards are clipped separately.",
    above=0,
)
patience = partial(
    setting, help="Stop after this many epochs without a better dev result; 0: never.", at_least=0
)
optimizer = partial(setting, help="Optimizer of the network.")
weight_decay = partial(setting, help="Add this times the weights to the gradient.", at_least=0)
decay = partial(setting, help="Divide the learning rate by this once an epoch, after --decay-after.", above=0)
decay_after = partial(setting, help="Epochs before --decay begins.", at_least=0, needs={"decay": Other((1,))})
sampled_decay = partial(
    setting,
    help="Multiply the learning rate by this once an epoch, after the relaxed epochs.",
    above=0,
    needs=({"relaxed_epochs": ON}, {"model": CHOOSING}),
)
average = partial(
    setting, help="Average the weights: always, or once dev stops improving (NT-ASGD: non_monotone)."
)
average_interval = partial(
    setting,
    help="n of NT-ASGD: average once dev is worse than its best of n epochs ago.",
    at_least=1,
    needs={"average": "non_monotone"},
)
activation_coef = partial(
    setting, help="α of AR, a penalty on large outputs (Merity et al. 2018).", at_least=0
)
temporal_coef = partial(
    setting, help="β of TAR, a penalty on changing outputs (Merity et al. 2018).", at_least=0
)

from .functional import Policy as Policy
from .nn import SkipCell as SkipCell
from .nn import SkipLayers as SkipLayers
from .nn import SkipLSTM as SkipLSTM
from .nn import SkipRNN as SkipRNN
from .runs.load import load_run as load_run

__version__: str

"""One thread: small products are slower with several."""

import torch

torch.set_num_threads(1)

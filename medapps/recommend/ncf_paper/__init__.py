"""NCF as its paper has it (He et al. 2017), with the crop as a service vector of its MLP tower."""

from transformers import PreTrainedConfig
def is_known(config: PreTrainedConfig) -> bool:
    return False

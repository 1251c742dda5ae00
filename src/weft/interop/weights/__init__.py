"""Files of weights: safetensors and GGUF, mapped into memory, and every claim in them checked."""

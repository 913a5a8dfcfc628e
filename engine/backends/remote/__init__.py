"""Models behind somebody else's HTTP API: Cerebras, vLLM, SGLang, llama.cpp."""

//! The decoder as a burn module, Hugging Face folders, and the one forward shared by trainer and inference.

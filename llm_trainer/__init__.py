"""A compact reinforcement-learning trainer for Qwen-class models; README.md is the way in."""

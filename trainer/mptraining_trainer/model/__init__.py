"""The model that is trained: how it is compiled, and how Keras' own loss and metrics are called."""

"""The training loop: K steps per execution, loss reduction, gradients, the model's own steps, and evaluation."""

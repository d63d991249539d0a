"""K training steps in one call of the device: step, loss reduction, gradients, evaluation."""

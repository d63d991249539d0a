"""The parts of the tensorflow-cloud API that client and trainer share."""

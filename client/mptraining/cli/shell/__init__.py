"""What a shell adds to the commands: completion, plain help, and the verbs of other tools."""

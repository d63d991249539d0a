"""Shell completion of the commands, and hints for the verbs of other tools."""

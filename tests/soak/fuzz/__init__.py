"""Coverage-guided fuzzing of every parser of bytes that others write, by atheris (libFuzzer)."""

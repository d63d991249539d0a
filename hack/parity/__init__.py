"""The differential test bench: generated Keras programs, trained by plain `model.fit` and by this trainer.

`python -m hack.parity --programs 2000 --seed 1`. A frozen `Program` (`program`) is drawn by Hypothesis
(`strategies`), becomes Python source (`source`), is trained twice (`plain_fit`, `trainer_run`) in a child process of
its Keras generation (`child`), and the two are compared within the bounds of one table (`bounds`, `compare`). A program
that differs is printed with its source; leave out choices of its JSON by hand, and run it with `--program`.
"""

"""tensorflow-cloud's own examples, notebooks, README and guides, each as it is, through this project's `tfc.run`.

    git clone https://github.com/tensorflow/cloud
    python -m bench.tensorflow_cloud cloud --markdown docs/tensorflow-cloud.md

Nothing is downloaded and no cluster is needed: jobs train on this machine, data sets and weights are stubs.
"""

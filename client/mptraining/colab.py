"""One line for a notebook that was written for tensorflow-cloud: `import mptraining.colab`.

From then on `import tensorflow_cloud as tfc` is `mptraining.tensorflow_cloud`, without installing the 3.3 GB of the
real package; one that is imported already is redirected (`mptraining.tensorflow_cloud.install`).
"""

from __future__ import annotations

import sys

from mptraining import tensorflow_cloud

_NAME = "tensorflow_cloud"

if _NAME not in sys.modules:
    sys.modules[_NAME] = tensorflow_cloud
elif sys.modules[_NAME] is not tensorflow_cloud and not tensorflow_cloud.remote():
    tensorflow_cloud.install()

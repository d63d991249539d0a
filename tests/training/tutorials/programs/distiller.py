"""Knowledge distillation as in Keras' examples of 2020 to 2023, in tf.keras: no call, compile with other arguments."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

keras.utils.set_random_seed(3)


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.teacher = teacher
        self.student = student

    def compile(self, optimizer, metrics, student_loss_fn, distillation_loss_fn, alpha=0.1, temperature=3):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn = student_loss_fn
        self.distillation_loss_fn = distillation_loss_fn
        self.alpha = alpha
        self.temperature = temperature

    def train_step(self, data):
        x, y = data
        teacher_predictions = self.teacher(x, training=False)
        with tf.GradientTape() as tape:
            student_predictions = self.student(x, training=True)
            student_loss = self.student_loss_fn(y, student_predictions)
            distillation_loss = self.distillation_loss_fn(
                tf.nn.softmax(teacher_predictions / self.temperature, axis=1),
                tf.nn.softmax(student_predictions / self.temperature, axis=1),
            )
            loss = self.alpha * student_loss + (1 - self.alpha) * distillation_loss * self.temperature**2
        gradients = tape.gradient(loss, self.student.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.student.trainable_variables))
        self.compiled_metrics.update_state(y, student_predictions)
        results = {m.name: m.result() for m in self.metrics}
        results.update({"student_loss": student_loss, "distillation_loss": distillation_loss})
        return results


teacher = keras.Sequential([keras.Input((4,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(3)])
student = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
rng = np.random.default_rng(0)
x, y = rng.random((32, 4)).astype("float32"), rng.integers(0, 3, 32)
distiller = Distiller(student=student, teacher=teacher)
distiller.compile(
    optimizer=keras.optimizers.Adam(),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
    student_loss_fn=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    distillation_loss_fn=keras.losses.KLDivergence(),
)
history = distiller.fit(x, y, epochs=3, batch_size=8, shuffle=False, verbose=0).history
print("LOSSES", [float(value) for value in history["distillation_loss"]])

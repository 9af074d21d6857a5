"""The engine that trains Keras models; imports what ``fleet.engines`` may import, and TensorFlow."""

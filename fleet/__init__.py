"""FLEET: train an ensemble of different neural networks inside one MPI launch."""

from fleet import package_names

__version__ = "0.2.0"

package_names.install()

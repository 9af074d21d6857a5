"""The recipe for Spack 1.0 and newer.

spack repo add launch/containers/spack/spack_repo/fleet
spack install py-fleet-ensemble
"""

from pathlib import Path

from spack.package import default_args, depends_on, license, variant, version
from spack_repo.builtin.build_systems.python import PythonPackage


class PyFleetEnsemble(PythonPackage):
    """Train an ensemble of different neural networks inside one MPI launch."""

    git = Path(__file__).resolve().parents[7].as_uri()  # the clone that this recipe stands in

    license("Apache-2.0")

    version("0.2.0", branch="main")

    variant("run", default=True, description="TensorFlow and mpi4py, for the main job")
    variant("fast", default=False, description="numba compiles a kernel of `fleet evict`")
    variant("plots", default=False, description="matplotlib draws what --plot asks for")
    variant("demo", default=False, description="the digits of scikit-learn")
    variant("parquet", default=False, description="tables in Parquet files")

    depends_on("python@3.11:3.13", type=("build", "run"))
    depends_on("py-setuptools@68:", type="build")
    with default_args(type=("build", "run")):
        depends_on("py-google-crc32c@1.3:")
        depends_on("py-h5py@3.11:")
        depends_on("py-numpy@1.26:")
        depends_on("py-pillow@10:")
        depends_on("py-pydantic@2.7:")
        depends_on("py-pyyaml@6:")
        depends_on("py-rich@13:")
        depends_on("py-scipy@1.11:")
        depends_on("py-tensorflow@2.17:2.21", when="+run")
        depends_on("py-mpi4py@4:", when="+run")
        depends_on("py-numba@0.60:", when="+fast")
        depends_on("py-matplotlib@3.8:", when="+plots")
        depends_on("py-scikit-learn@1.4:", when="+demo")
        depends_on("py-pyarrow@14:", when="+parquet")

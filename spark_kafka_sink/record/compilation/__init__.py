"""How functions become kernels: compiled by numba, cached as files and loaded without numba."""

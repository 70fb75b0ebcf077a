"""The compiled loops that write and read records, and how functions become such kernels."""

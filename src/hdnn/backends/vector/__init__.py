"""Operations on blocks of samples in explicit machine vectors, for the fused kernels."""

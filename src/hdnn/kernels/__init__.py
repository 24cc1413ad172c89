"""Everything that is compiled, and nothing else: arrays in, arrays out; no torch, no networks.

From the smallest to the largest, each built on those before it:

    cache, background, build         where compiled kernels are kept; who compiles them, and how
    vectors, activations, products   machine vectors in registers; sigma; small matrices x blocks
    stage_table, rows                stages of a layer as numbers; W, A, b filled from parameters
    blocks                           a block of samples through the stages and layers
    team                             how threads share the pieces of one call
    tiling                           how a call is cut into blocks, segments and chunks
    passes                           forward and backward through all layers
    jacobians, svd                   d y_N / d y_l at many depths, and their singular values
    output_layer, epoch, joint       the output layer solved; whole epochs of training
    catalogue                        every kernel by its name

A kernel is compiled for a dtype when it is first used, and kept on disk (see `cache`) until a file
of this folder changes. ``hdnn info --warm`` compiles all of them.
"""

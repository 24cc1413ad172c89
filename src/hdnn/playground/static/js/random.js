// Random numbers that a seed repeats on every machine: sfc32, 128 bits of state.

export class Random {
  constructor(seed) {
    [this.a, this.b, this.c, this.d] = [0x9e3779b9, 0x243f6a88, seed | 0, 1];
    this.spare = null;
    for (let i = 0; i < 16; i++) this.uniform();
  }

  /** In [0, 1). */
  uniform() {
    const t = (((this.a + this.b) | 0) + this.d) | 0;
    this.d = (this.d + 1) | 0;
    this.a = this.b ^ (this.b >>> 9);
    this.b = (this.c + (this.c << 3)) | 0;
    this.c = (((this.c << 21) | (this.c >>> 11)) + t) | 0;
    return (t >>> 0) / 4294967296;
  }

  /** Standard normal, by Marsaglia's polar method. */
  normal() {
    if (this.spare !== null) {
      const spare = this.spare;
      this.spare = null;
      return spare;
    }
    let x;
    let y;
    let square;
    do {
      [x, y] = [2 * this.uniform() - 1, 2 * this.uniform() - 1];
      square = x * x + y * y;
    } while (square >= 1 || square === 0);
    const factor = Math.sqrt((-2 * Math.log(square)) / square);
    this.spare = y * factor;
    return x * factor;
  }

  /** A permutation of 0 ... size - 1. */
  permutation(size) {
    const order = Int32Array.from({ length: size }, (_, i) => i);
    for (let i = size - 1; i > 0; i--) {
      const k = Math.floor(this.uniform() * (i + 1));
      [order[i], order[k]] = [order[k], order[i]];
    }
    return order;
  }
}

// Products over a batch. An array of m features of B samples has feature i of sample s at i B + s,
// so that inner loops run along samples with a tile of 2 x 2 weights in registers: a number that is
// loaded serves two products.

/** Y[i] += sum_k W[i, k] X[k]; entry (i, k) of W stands at w0 + i rs + k cs. */
export function multiply(W, w0, rs, cs, m, r, X, x0, Y, y0, B) {
  for (let i = 0; i < m; i += 2) {
    for (let k = 0; k < r; k += 2) {
      // At an odd edge the missing row or column of the tile repeats the last one, times 0.
      const [down, right] = [i + 1 < m ? 1 : 0, k + 1 < r ? 1 : 0];
      const w = w0 + i * rs + k * cs;
      const [a, b] = [W[w], right * W[w + right * cs]];
      const [c, d] = [down * W[w + down * rs], down * right * W[w + down * rs + right * cs]];
      const [x, y] = [x0 + k * B, y0 + i * B];
      const [x1, y1] = [x + right * B, y + down * B];
      for (let s = 0; s < B; s++) {
        const p = X[x + s];
        const q = X[x1 + s];
        Y[y + s] += a * p + b * q;
        Y[y1 + s] += c * p + d * q;
      }
    }
  }
}

/** G[i, k] += sum_s D[i, s] X[k, s], G of m rows and r columns. */
export function outer(D, d0, m, X, x0, r, G, g0, B) {
  for (let i = 0; i < m; i += 2) {
    for (let k = 0; k < r; k += 2) {
      // At an odd edge the tile counts its last row or column twice, and only one is kept.
      const [down, right] = [i + 1 < m ? 1 : 0, k + 1 < r ? 1 : 0];
      const [d, x] = [d0 + i * B, x0 + k * B];
      const [d1, x1] = [d + down * B, x + right * B];
      let [aa, ab, ba, bb] = [0, 0, 0, 0];
      for (let s = 0; s < B; s++) {
        const p = D[d + s];
        const q = D[d1 + s];
        const u = X[x + s];
        const v = X[x1 + s];
        aa += p * u;
        ab += p * v;
        ba += q * u;
        bb += q * v;
      }
      const g = g0 + i * r + k;
      G[g] += aa;
      if (right) G[g + 1] += ab;
      if (down) G[g + r] += ba;
      if (right && down) G[g + r + 1] += bb;
    }
  }
}

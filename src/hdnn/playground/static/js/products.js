// Products over a batch. An array of m features of B samples has feature i of sample s at i B + s,
// so that inner loops run along samples with a tile of weights in registers. Tiles of 4 x 4 and
// 2 x 2 halve the time of single rows: a number that is loaded serves four or two products.

/** Y[i] += sum_k W[i, k] X[k]; entry (i, k) of W stands at w0 + i rs + k cs. */
export function multiply(W, w0, rs, cs, m, r, X, x0, Y, y0, B) {
  for (let i = 0; i < m; ) {
    const rows = tileOf(m - i);
    for (let k = 0; k < r; ) {
      const t = Math.min(rows, tileOf(r - k));
      for (let a = 0; a < rows; a += t) {
        const w = w0 + (i + a) * rs + k * cs;
        const [x, y] = [x0 + k * B, y0 + (i + a) * B];
        if (t === 4) multiply4(W, w, rs, cs, X, x, Y, y, B);
        else if (t === 2) multiply2(W, w, rs, cs, X, x, Y, y, B);
        else for (let s = 0, v = W[w]; s < B; s++) Y[y + s] += v * X[x + s];
      }
      k += t;
    }
    i += rows;
  }
}

const tileOf = (size) => (size >= 4 ? 4 : size >= 2 ? 2 : 1);

function multiply4(W, w, rs, cs, X, x, Y, y, B) {
  const [a0, a1, a2, a3] = [W[w], W[w + cs], W[w + 2 * cs], W[w + 3 * cs]];
  w += rs;
  const [b0, b1, b2, b3] = [W[w], W[w + cs], W[w + 2 * cs], W[w + 3 * cs]];
  w += rs;
  const [c0, c1, c2, c3] = [W[w], W[w + cs], W[w + 2 * cs], W[w + 3 * cs]];
  w += rs;
  const [d0, d1, d2, d3] = [W[w], W[w + cs], W[w + 2 * cs], W[w + 3 * cs]];
  const [x1, x2, x3] = [x + B, x + 2 * B, x + 3 * B];
  const [y1, y2, y3] = [y + B, y + 2 * B, y + 3 * B];
  for (let s = 0; s < B; s++) {
    const p = X[x + s];
    const q = X[x1 + s];
    const u = X[x2 + s];
    const v = X[x3 + s];
    Y[y + s] += a0 * p + a1 * q + a2 * u + a3 * v;
    Y[y1 + s] += b0 * p + b1 * q + b2 * u + b3 * v;
    Y[y2 + s] += c0 * p + c1 * q + c2 * u + c3 * v;
    Y[y3 + s] += d0 * p + d1 * q + d2 * u + d3 * v;
  }
}

function multiply2(W, w, rs, cs, X, x, Y, y, B) {
  const [a0, a1, b0, b1] = [W[w], W[w + cs], W[w + rs], W[w + rs + cs]];
  const [x1, y1] = [x + B, y + B];
  for (let s = 0; s < B; s++) {
    const p = X[x + s];
    const q = X[x1 + s];
    Y[y + s] += a0 * p + a1 * q;
    Y[y1 + s] += b0 * p + b1 * q;
  }
}

/** G[i, k] += sum_s D[i, s] X[k, s], G of m rows and r columns. */
export function outer(D, d0, m, X, x0, r, G, g0, B) {
  for (let i = 0; i < m; i += 2) {
    // At an odd edge the tile counts its last row or column twice, and only one is kept.
    const d = d0 + i * B;
    const below = i + 1 < m ? r : 0;
    const d1 = below ? d + B : d;
    let k = 0;
    for (; k + 4 <= r; k += 4) outer4(D, d, d1, X, x0 + k * B, G, g0 + i * r + k, below, B);
    for (; k < r; k += 2) {
      const right = k + 1 < r ? 1 : 0;
      outer2(D, d, d1, X, x0 + k * B, x0 + (k + right) * B, G, g0 + i * r + k, right, below, B);
    }
  }
}

function outer4(D, d, d1, X, x, G, g, below, B) {
  let [a0, a1, a2, a3, b0, b1, b2, b3] = [0, 0, 0, 0, 0, 0, 0, 0];
  const [x1, x2, x3] = [x + B, x + 2 * B, x + 3 * B];
  for (let s = 0; s < B; s++) {
    const p = D[d + s];
    const q = D[d1 + s];
    let v = X[x + s];
    a0 += p * v;
    b0 += q * v;
    v = X[x1 + s];
    a1 += p * v;
    b1 += q * v;
    v = X[x2 + s];
    a2 += p * v;
    b2 += q * v;
    v = X[x3 + s];
    a3 += p * v;
    b3 += q * v;
  }
  G[g] += a0;
  G[g + 1] += a1;
  G[g + 2] += a2;
  G[g + 3] += a3;
  if (!below) return;
  G[g + below] += b0;
  G[g + below + 1] += b1;
  G[g + below + 2] += b2;
  G[g + below + 3] += b3;
}

function outer2(D, d, d1, X, x, x1, G, g, right, below, B) {
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
  G[g] += aa;
  if (right) G[g + 1] += ab;
  if (below) G[g + below] += ba;
  if (right && below) G[g + below + 1] += bb;
}

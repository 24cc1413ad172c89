// The geometry of the flow panel: the plane that the states are looked at from, and their extent.

export const dot = (a, b) => a.reduce((sum, v, i) => sum + v * b[i], 0);
const unit = (a) => {
  const length = Math.sqrt(dot(a, a)) || 1;
  return a.map((v) => v / length);
};
const orthonormal = (u, v) => {
  const first = unit(u);
  const along = dot(first, v);
  return [first, unit(v.map((c, i) => c - along * first[i]))];
};

/** The direction in which states differ most, apart from those already taken. */
function principal(states, start, n, count, others) {
  const mean = Array.from({ length: n }, (_, k) => {
    let sum = 0;
    for (let s = 0; s < count; s++) sum += states[start + k * count + s];
    return sum / count;
  });
  let v = Array.from({ length: n }, (_, k) => 1 + 0.1 * k);
  for (let turn = 0; turn < 12; turn++) {
    for (const t of others) {
      const along = dot(v, t);
      v = v.map((c, i) => c - along * t[i]);
    }
    const next = new Array(n).fill(0);
    for (let s = 0; s < count; s++) {
      let along = 0;
      for (let k = 0; k < n; k++) along += v[k] * (states[start + k * count + s] - mean[k]);
      for (let k = 0; k < n; k++) next[k] += along * (states[start + k * count + s] - mean[k]);
    }
    if (!(dot(next, next) > 1e-30)) break;
    v = unit(next);
  }
  return v;
}

/**
 * What the flow is looked at from: at first the plane of the data, in the end one with the direction
 * in which the output layer decides, so that what was learned can be seen; between them a turn.
 */
export function projection(snapshot) {
  const { n, V, outputs, flow, depths, shown } = snapshot;
  const axis = (i) => Array.from({ length: n }, (_, k) => (k === i ? 1 : 0));
  const from = [axis(0), axis(1)];
  const start = (depths.length - 1) * n * shown;
  const head = Array.from(V.subarray(0, n));
  const first = outputs === 1 && dot(head, head) > 1e-12 ? unit(head) : principal(flow, start, n, shown, []);
  const to = orthonormal(first, principal(flow, start, n, shown, [first]));
  // Of the two directions that a line has, the one that turns less.
  if (dot(to[1], from[1]) < 0) to[1] = to[1].map((c) => -c);
  const between = (k, t) => from[k].map((c, i) => (1 - t) * c + t * to[k][i]);
  return (t) => orthonormal(between(0, t), between(1, t));
}

/** How far the points are apart at a shown depth: the largest standard deviation of a coordinate. */
function spreadAt({ n, shown, flow: states }, d) {
  let most = 0;
  for (let k = 0, at = d * n * shown; k < n; k++, at += shown) {
    let [sum, squares] = [0, 0];
    for (let s = at; s < at + shown; s++) sum += states[s] / shown;
    for (let s = at; s < at + shown; s++) squares += (states[s] - sum) ** 2 / shown;
    most = Math.max(most, Math.sqrt(squares));
  }
  return most;
}

/** Whether all points are in one place, as far as an eye can tell. */
export const isOnePlace = (snapshot, d) => spreadAt(snapshot, d) < 0.01 * spreadAt(snapshot, 0);
export const isCollapsed = (snapshot) => isOnePlace(snapshot, snapshot.depths.length - 1);

/** Coordinate of point s at shown depth d along a direction. */
export function coordinate({ n, shown, flow }, d, s, direction) {
  let sum = 0;
  for (let k = 0; k < n; k++) sum += direction[k] * flow[(d * n + k) * shown + s];
  return sum;
}

/** How far the points reach in a plane at shown depth d, but for one in a hundred. */
export function extent(snapshot, d, plane) {
  const reach = (s) => Math.max(...plane.map((b) => Math.abs(coordinate(snapshot, d, s, b))));
  const lengths = Float64Array.from({ length: snapshot.shown }, (_, s) => reach(s)).sort();
  return lengths[Math.floor(0.99 * (snapshot.shown - 1))];
}

// The guided tour: five states of the page, each with a paragraph.

export const TOUR = [
  {
    title: "A network can be a flow",
    text: "Each layer moves every point a little: y ← y + h f(y). Many small layers make a flow, like a river that carries the data. Press Play, then move the slider beside “Flow”: the two arms of the roll are carried apart, until a straight line separates them.",
    state: { first: "H1", second: "none", layers: 16, T: 2.5 },
    focus: "flow",
  },
  {
    title: "Depth makes the flow fine",
    text: "The same time T = 2.5, now in 64 layers instead of 16: each step h = T / N is four times smaller, and the network has four times the freedom. It separates the roll completely, and the gradient map stays pale from the last layer to the first: depth does not hurt here.",
    state: { first: "H1", second: "none", layers: 64, T: 2.5 },
    focus: "heat",
  },
  {
    title: "Why plain depth fails",
    text: "On the right stands a plain network of the same depth, y ← σ(K y + b). Its gradient turns dark blue: after a few layers nothing is left of it, so the first layers hear nothing of the error and never learn. The points collapse, and the accuracy stays near one half.",
    state: { first: "H1", second: "FCNN", layers: 64, T: 2.5 },
    focus: "heat",
  },
  {
    title: "What J does",
    text: "Both networks are y ← y + h·(something). On the left J is skew, so that the eigenvalues of the Jacobian lie on the imaginary axis, whatever the weights: the flow turns, nothing decays and nothing blows up. On the right (ResNet) there is no J, and the eigenvalues scatter to both sides: decay and growth. Over a short flow both can learn; only the left comes with a guarantee.",
    state: { first: "H1", second: "ResNet", layers: 64, T: 2.5 },
    focus: "spectrum",
  },
  {
    title: "T, h and stability",
    text: "T = 40 in 32 layers makes steps of h = T / N = 1.25, far too large for forward Euler (left): its map begins in deep orange, gradients of 1000 and more, and it hardly learns. A scheme that respects the structure (right, MS1) stands the same step better. Set Time T back to 2.5 and watch both recover.",
    state: { first: "H1", second: "MS1", layers: 32, T: 40 },
    focus: "heat",
  },
];

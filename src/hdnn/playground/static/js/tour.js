// The guided tour: five states of the page, each with a paragraph.

export const TOUR = [
  {
    title: "A network can be a flow",
    text: "Each layer moves every point a little: y ← y + h f(y). Many small layers make a flow, like a river that carries the data. Press Play, then move the slider under “Flow”: the two arms of the roll are carried apart, until a straight line separates them.",
    state: { first: "H1", second: "none", layers: 16, T: 2.5 },
    focus: "flow",
  },
  {
    title: "Depth makes the flow fine",
    text: "The same time T = 2.5, now in 64 layers instead of 16: each step h = T / N is four times smaller. The regions come out just as well, the flow is smoother, and the gradient map stays pale from the last layer to the first: depth costs nothing here.",
    state: { first: "H1", second: "MS1", layers: 64, T: 2.5 },
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
    text: "Both networks here are y ← y + h·(something). On the left J is skew, so the eigenvalues of the Jacobian lie on the imaginary axis: the flow rotates, nothing decays and nothing blows up. On the right (ResNet) there is no J: the eigenvalues scatter, and the gradient grows or shrinks exponentially along a long flow.",
    state: { first: "H2", second: "ResNet", layers: 64, T: 10, learningRate: 0.01 },
    focus: "spectrum",
  },
  {
    title: "T, h and stability",
    text: "Too long a flow in too few layers means large steps, h = T / N = 1.25, and forward Euler (left) becomes unstable: its gradients explode, orange. A scheme that preserves the structure (right, MS3) stands the same step better. Lower T, or add layers, and watch the map turn pale again.",
    state: { first: "H1", second: "MS3", layers: 8, T: 10 },
    focus: "heat",
  },
];

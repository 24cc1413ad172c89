// The guided tour: five states of the page, each with a paragraph. What it says of results was
// measured with ten seeds in 1500 iterations.

export const TOUR = [
  {
    title: "A network can be a flow",
    text:
      "Each layer moves every point a little: y ← y + h f(y). Many small layers make a flow, like a river that " +
      "carries the data. Move the slider beside “Flow”: the longer the training, the further the two arms of the roll " +
      "are carried apart, until a straight line separates them.",
    state: { first: "H1", second: "none", layers: 16 },
    focus: "flow",
  },
  {
    title: "Depth makes the flow fine",
    text:
      "The same time T = 2.5, now in 64 layers instead of 16: each step h = T / N is four times smaller, and the " +
      "network has four times as many weights. The gradient map stays pale from the last layer to the first: depth " +
      "does not hurt here.",
    state: { first: "H1", second: "none", layers: 64 },
    focus: "heat",
  },
  {
    title: "Why plain depth fails",
    text:
      "On the right is a plain network of the same depth, without skip connections: y ← σ(K y + b). Its gradient " +
      "turns dark blue: after a few layers nothing is left of it, so the first layers receive no signal and do not " +
      "learn. All points end in one place, and the accuracy stays near one half.",
    state: { first: "H1", second: "FCNN" },
    focus: "heat",
  },
  {
    title: "What skip connections do, and what J adds",
    text:
      "On the right is a ResNet: y ← y + h σ(K y + b). Skip connections are enough to learn this roll, and both " +
      "networks do. The difference is the guarantee. On the left J is skew, so the eigenvalues of the Jacobian lie " +
      "on the imaginary axis and the gradient cannot fall below 1, whatever the weights. On the right the " +
      "eigenvalues scatter to both sides: decay and growth are possible.",
    state: { first: "H1", second: "ResNet", panels: "all" },
    focus: "spectrum",
  },
  {
    title: "T, h and stability",
    text:
      "T = 40 in 32 layers makes steps of h = T / N = 1.25. That is too large for forward Euler (left, H1), which " +
      "ends at 58 to 76 % in ten runs. MS1 (right) is Hamiltonian as well, and its steps respect the structure: 93 " +
      "to 100 %. A ResNet stands these steps too. Set Time T back to 2.5 and watch H1 recover.",
    state: { first: "H1", second: "MS1", layers: 32, T: 40 },
    focus: "heat",
  },
];

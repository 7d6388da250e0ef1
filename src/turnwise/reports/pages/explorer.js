// Rotate or shift an image, and look up the predictions for that view.
const data = JSON.parse(document.getElementById("explorer-data").textContent);
const canvas = document.getElementById("explorer-image");
const slider = document.getElementById("explorer-angle");
const statusLine = document.getElementById("explorer-status");
const models = document.getElementById("explorer-models");
const buttons = [...document.querySelectorAll("#explorer-choice button")];
const view = { number: 0, right: 0, up: 0 };

for (const _ of data.models) {
  const box = document.createElement("div");
  box.className = "model";
  models.append(box);
}

// What an image shows outside its borders, by fill mode; shifted images always show zeros.
const inside = (n, size) => Math.max(0, Math.min(size - 1, n));
function reflected(x, size) {
  const around = (((x + 0.5) % (2 * size)) + 2 * size) % (2 * size);
  return inside(Math.min(around, 2 * size - around) - 0.5, size);
}
const places = { reflect: reflected, border: inside, disc: inside };

// The mean of each channel, over the inscribed disc or the whole image.
function means({ rows, cols, channels }, pixels, keeps) {
  const sums = new Array(channels).fill(0);
  let count = 0;
  for (let row = 0; row < rows; row++) {
    for (let col = 0; col < cols; col++) {
      if (!keeps(row, col)) continue;
      count++;
      for (let c = 0; c < channels; c++) sums[c] += pixels[(row * cols + col) * channels + c];
    }
  }
  return sums.map((sum) => sum / count);
}

// The image that the model was given: f(A⁻¹(x − t)), bilinear; x right, y up.
function sample(source, pixels, degrees, right, up) {
  const { rows, cols, channels } = source;
  const fill = right === 0 && up === 0 ? data.fill : "zeros";
  const [cos, sin] = [Math.cos((degrees * Math.PI) / 180), Math.sin((degrees * Math.PI) / 180)];
  const drawn = new ImageData(cols, rows);
  const radius = fill === "disc" ? Math.min(rows, cols) / 2 : Infinity;
  const keeps = (row, col) => Math.hypot(row - (rows - 1) / 2, col - (cols - 1) / 2) <= radius;
  const outside = fill === "mean" ? means(source, pixels, keeps) : new Array(channels).fill(0);
  const place = places[fill] || ((x) => x);
  const at = (row, col, channel) =>
    row < 0 || col < 0 || row >= rows || col >= cols
      ? outside[channel]
      : pixels[(row * cols + col) * channels + channel];
  for (let row = 0; row < rows; row++) {
    for (let col = 0; col < cols; col++) {
      const x = col - (cols - 1) / 2 - right;
      const y = (rows - 1) / 2 - row - up;
      const fromCol = place(x * cos + y * sin + (cols - 1) / 2, cols);
      const fromRow = place((rows - 1) / 2 - (y * cos - x * sin), rows);
      const [top, left] = [Math.floor(fromRow + 1e-9), Math.floor(fromCol + 1e-9)];
      const [below, beside] = [Math.max(0, fromRow - top), Math.max(0, fromCol - left)];
      for (let channel = 0; channel < 3; channel++) {
        const c = channels === 1 ? 0 : channel;
        drawn.data[4 * (row * cols + col) + channel] =
          (1 - below) * ((1 - beside) * at(top, left, c) + beside * at(top, left + 1, c)) +
          below * ((1 - beside) * at(top + 1, left, c) + beside * at(top + 1, left + 1, c));
      }
      drawn.data[4 * (row * cols + col) + 3] = 255;
    }
  }
  return radius < Infinity ? keepDisc(drawn, keeps) : drawn;
}

// Replace what is outside the inscribed disc by the mean of the disc.
function keepDisc(drawn, keeps) {
  const { width, height } = drawn;
  const mean = means({ rows: height, cols: width, channels: 4 }, drawn.data, keeps);
  for (let row = 0; row < height; row++) {
    for (let col = 0; col < width; col++) {
      if (!keeps(row, col)) for (let c = 0; c < 4; c++) drawn.data[4 * (row * width + col) + c] = mean[c];
    }
  }
  return drawn;
}

function show() {
  const source = data.images[view.number];
  const degrees = Number(slider.value);
  const side = 2 * data.reach + 1;
  const shifted = view.right !== 0 || view.up !== 0;
  canvas.width = source.cols;
  canvas.height = source.rows;
  const pen = canvas.getContext("2d", { willReadFrequently: true }); // drawn pixel by pixel, not by a GPU
  pen.putImageData(sample(source, bytesOf(source.pixels), degrees, view.right, view.up), 0, 0);
  data.models.forEach((name, m) => {
    const probabilities = shifted
      ? source.shifted[m][(data.reach - view.up) * side + view.right + data.reach]
      : source.rotated[m][degrees / data.step];
    showPredictions(models.children[m], name, source.classes, probabilities.map((p) => p / data.scale), source.label);
  });
  const [across, upright] = [view.right < 0 ? "left" : "right", view.up < 0 ? "down" : "up"];
  statusLine.textContent = shifted
    ? `shifted ${Math.abs(view.right)} ${across} and ${Math.abs(view.up)} ${upright}, in pixels`
    : `rotated by ${degrees}°`;
  buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === view.number)));
}

function shift(right, up) {
  const inside = (steps) => Math.max(-data.reach, Math.min(data.reach, steps));
  [view.right, view.up] = [inside(right), inside(up)];
  slider.value = 0;
  show();
}

slider.addEventListener("input", () => {
  [view.right, view.up] = [0, 0];
  show();
});
buttons.forEach((button, i) =>
  button.addEventListener("click", () => {
    view.number = i;
    show();
  }),
);
document.getElementById("explorer-reset").addEventListener("click", () => shift(0, 0));
canvas.addEventListener("keydown", (event) => {
  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
  if (steps) {
    event.preventDefault();
    shift(view.right + steps[0], view.up + steps[1]);
  } else if (event.key === "Home") {
    event.preventDefault();
    shift(0, 0);
  }
});
let held = null;
canvas.addEventListener("pointerdown", (event) => {
  held = { x: event.clientX, y: event.clientY, right: view.right, up: view.up };
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointermove", (event) => {
  if (!held) return;
  const pixel = canvas.clientWidth / canvas.width;
  const right = held.right + Math.round((event.clientX - held.x) / pixel);
  const up = held.up - Math.round((event.clientY - held.y) / pixel);
  shift(right, up);
});
for (const end of ["pointerup", "pointercancel"]) {
  canvas.addEventListener(end, () => {
    held = null;
  });
}
show();

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

function show() {
  const source = data.images[view.number];
  const degrees = Number(slider.value);
  const side = 2 * data.reach + 1;
  const shifted = view.right !== 0 || view.up !== 0;
  canvas.width = source.cols;
  canvas.height = source.rows;
  const pen = canvas.getContext("2d", { willReadFrequently: true }); // drawn pixel by pixel, not by a GPU
  const fill = shifted ? "zeros" : data.fill;
  pen.putImageData(sample(source, bytesOf(source.pixels), degrees, fill, view.right, view.up), 0, 0);
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

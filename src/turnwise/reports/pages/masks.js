// Show the frame of each model at the angle of the slider.
const masks = JSON.parse(document.getElementById("masks-data").textContent);
const angle = document.getElementById("masks-angle");
const line = document.getElementById("masks-status");
const frames = [...document.querySelectorAll("#masks-models img")];
const notes = [...document.querySelectorAll("#masks-models figcaption")];

function showMasks() {
  const number = Number(angle.value);
  masks.models.forEach((model, i) => {
    frames[i].src = model.frames[number];
    frames[i].alt = `${model.name} at ${masks.angles[number]}°`;
    notes[i].textContent = `${model.name}: ${model.kept[number]} of the pixels keep their class`;
  });
  line.textContent = `rotated by ${masks.angles[number]}°`;
}

angle.addEventListener("input", showMasks);
showMasks();

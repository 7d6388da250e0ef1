// Take an image, rotate it, and request a prediction for every angle.
const state = { image: null, waiting: false, again: false }; // an image is { content, small }
const slider = document.getElementById("serve-angle");
const rotated = document.getElementById("serve-image");
const statusLine = document.getElementById("serve-status");
const model = document.getElementById("serve-model");
const drop = document.getElementById("serve-drop");
const input = document.getElementById("serve-file");

function showError(message) {
  statusLine.className = "error";
  statusLine.textContent = message;
}

function refuse(message) {
  state.image = null;
  slider.disabled = true;
  showError(message);
}

function show(image, degrees, reply) {
  const [found] = reply.predictions;
  rotated.src = `data:image/png;base64,${found.image}`;
  if (found.values) showNumbers(model, reply.model, found);
  else showPredictions(model, reply.model, found.classes, found.probabilities, null);
  statusLine.className = "";
  statusLine.textContent = `rotated by ${degrees}°`;
  slider.disabled = false;
  // from now on the image in the model's size is sent instead of the large file
  if (!image.small) Object.assign(image, { content: bytesOf(found.upright), small: true });
}

// Send one request at a time; slider events meanwhile lead to one more.  A reply is shown only if
// its image is still the current one: another may have been dropped since.
async function predict() {
  if (!state.image) return;
  if (state.waiting) {
    state.again = true;
    return;
  }
  state.waiting = true;
  const image = state.image;
  const degrees = slider.value;
  try {
    const body = image.content;
    const response = await fetch(`/predict?degrees=${degrees}&views=1`, { method: "POST", body });
    const reply = await response.json();
    if (state.image === image) {
      if (response.ok) show(image, degrees, reply);
      else refuse(reply.error);
    }
  } catch {
    if (state.image === image) {
      showError("The server does not respond; is turnwise serve still running?");
    }
  }
  state.waiting = false;
  if (state.again) {
    state.again = false;
    predict();
  }
}

function take(file) {
  if (!file) return;
  if (file.size > Number(drop.dataset.maxBytes)) {
    refuse(`The file has ${file.size} bytes, and ${drop.dataset.maxBytes} is the limit.`);
    return;
  }
  state.image = { content: file, small: false };
  slider.value = 0;
  predict();
}

slider.addEventListener("input", predict);
takeFiles(drop, input, take);
for (const button of document.querySelectorAll("[data-degrees]")) {
  button.addEventListener("click", () => {
    slider.value = button.dataset.degrees;
    predict();
  });
}

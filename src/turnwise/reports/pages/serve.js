// Drop a picture, turn it, and ask the model at every step.
const asked = { picture: null, waiting: false, again: false };  // a picture is { content, small }
const slider = document.getElementById("serve-angle");
const seen = document.getElementById("serve-seen");
const told = document.getElementById("serve-told");
const voice = document.getElementById("serve-voice");
const drop = document.getElementById("serve-drop");
const input = document.getElementById("serve-file");

function refuse(message) {
  told.className = "refused";
  told.textContent = message;
}

function forget(message) {
  asked.picture = null;
  slider.disabled = true;
  refuse(message);
}

function show(picture, degrees, answer) {
  seen.src = `data:image/png;base64,${answer.seen}`;
  showVoice(voice, answer.model, answer.classes, answer.probabilities, null);
  told.className = "";
  told.textContent = `turned by ${degrees}°`;
  slider.disabled = false;
  if (!picture.small) Object.assign(picture, { content: bytes(answer.upright), small: true });
}

// One question at a time; moves of the slider meanwhile lead to one more.  An answer counts only
// if its picture is still the one to be asked about: another may have been dropped since.
async function ask() {
  if (!asked.picture) return;
  if (asked.waiting) {
    asked.again = true;
    return;
  }
  asked.waiting = true;
  const picture = asked.picture;
  const degrees = slider.value;
  try {
    const body = picture.content;
    const reply = await fetch(`/answer?degrees=${degrees}`, { method: "POST", body });
    const answer = await reply.json();
    if (asked.picture === picture) {
      if (reply.ok) show(picture, degrees, answer);
      else forget(answer.error);
    }
  } catch {
    if (asked.picture === picture) {
      refuse("The server does not answer; is turnwise serve still running?");
    }
  }
  asked.waiting = false;
  if (asked.again) {
    asked.again = false;
    ask();
  }
}

// The picture in the model's size: from now on this is sent, and not the large file.
function bytes(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

function take(file) {
  if (!file) return;
  if (file.size > Number(drop.dataset.largest)) {
    forget(`The file has ${file.size} bytes, and ${drop.dataset.largest} is the limit.`);
    return;
  }
  asked.picture = { content: file, small: false };
  slider.value = 0;
  ask();
}

slider.addEventListener("input", ask);
input.addEventListener("change", () => take(input.files[0]));
drop.addEventListener("dragover", (event) => {
  event.preventDefault();
  drop.classList.add("over");
});
drop.addEventListener("dragleave", () => drop.classList.remove("over"));
drop.addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("over");
  take(event.dataTransfer.files[0]);
});
for (const button of document.querySelectorAll("[data-degrees]")) {
  button.addEventListener("click", () => {
    slider.value = button.dataset.degrees;
    ask();
  });
}

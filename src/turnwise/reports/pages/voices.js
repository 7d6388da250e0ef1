// What models say, as bars; both pages draw them so.
function showVoice(box, name, classes, probabilities, label) {
  const best = probabilities.indexOf(Math.max(...probabilities));
  const heading = document.createElement("h3");
  heading.textContent = name;
  const said = document.createElement("span");
  const right = label === null ? "" : best === label ? "right" : "wrong";
  said.className = `said ${right}`;
  const mark = { right: "✓ ", wrong: "✗ ", "": "" }[right];
  said.textContent = `${mark}${classes[best]}: ${percent(probabilities[best])}`;
  const list = document.createElement("ul");
  classes.forEach((word, i) => list.append(bar(word, probabilities[i], i === label)));
  box.replaceChildren(heading, said, list);
}

function bar(word, probability, isLabel) {
  const line = document.createElement("li");
  const [name, track, number] = ["span", "div", "span"].map((tag) => document.createElement(tag));
  const length = document.createElement("i");
  line.className = isLabel ? "label" : "";
  name.textContent = name.title = word;
  track.className = "bar";
  length.style.width = `${100 * probability}%`;
  number.textContent = percent(probability);
  track.append(length);
  line.append(name, track, number);
  return line;
}

function percent(probability) {
  return `${(100 * probability).toFixed(2)} %`;
}

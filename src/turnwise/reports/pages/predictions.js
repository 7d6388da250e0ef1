// Show the predictions of a model as bars.
function showPredictions(box, name, classes, probabilities, label) {
  const best = probabilities.indexOf(Math.max(...probabilities));
  const heading = document.createElement("h3");
  heading.textContent = name;
  const top = document.createElement("span");
  const kind = label === null ? "" : best === label ? "correct" : "wrong";
  top.className = `top ${kind}`;
  const mark = { correct: "✓ ", wrong: "✗ ", "": "" }[kind];
  top.textContent = `${mark}${classes[best]}: ${percent(probabilities[best])}`;
  const list = document.createElement("ul");
  classes.forEach((word, i) => list.append(bar(word, probabilities[i], i === label)));
  box.replaceChildren(heading, top, list);
}

// Show predicted numbers as a list.
function showNumbers(box, name, found) {
  const [heading, top, list] = ["h3", "span", "ul"].map((tag) => document.createElement(tag));
  heading.textContent = name;
  top.className = "top";
  top.textContent = found.label;
  found.names.forEach((word, i) => {
    const line = document.createElement("li");
    line.textContent = `${word}: ${found.values[i].toPrecision(4)}`;
    list.append(line);
  });
  box.replaceChildren(heading, top, list);
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

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

function percent(probability) {
  return `${(100 * probability).toFixed(2)} %`;
}

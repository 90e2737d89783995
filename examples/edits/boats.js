// The boats of a harbour.
const boats = ["Anna", "Berta"];

export function names() {
  return boats.join(", ");
}

export function add(name) {
  boats.push(name);
  return boats.length;
}

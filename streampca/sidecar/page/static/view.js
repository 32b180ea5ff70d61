// What the page shows, kept in its address: a link or a reload shows the same.

const values = new URLSearchParams(location.search);

/** The value of a parameter; null if there is none. */
export const get = (name) => values.get(name);

/** Keep the value of a parameter; without one the address does not contain it. */
export function set(name, value) {
  if (value) values.set(name, value);
  else values.delete(name);
  const query = `${values}`;
  history.replaceState(null, "", location.pathname + (query && `?${query}`) + location.hash);
}

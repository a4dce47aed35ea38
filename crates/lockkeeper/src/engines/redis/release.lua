-- Releases the locks that are held with this id, and notifies waiters.
-- KEYS: the locks. ARGV: id. Returns how many of them were held.
local id = ARGV[1]
local released = 0
for _, key in ipairs(KEYS) do
  local type = redis.call('TYPE', key).ok
  if type == 'string' and string.sub(redis.call('GET', key), 1, 40) == id then
    redis.call('DEL', key)
    redis.call('PUBLISH', key .. ':free', '')
    released = released + 1
  elseif type == 'hash' and redis.call('HDEL', key, id) == 1 then
    if redis.call('HLEN', key) <= 1 then redis.call('DEL', key) end
    redis.call('PUBLISH', key .. ':free', '')
    released = released + 1
  end
end
return released

-- Gives back what is held by this id and by nobody else, and tells those who wait.
-- KEYS: the locks. ARGV: id. Answers how many of them were held.
local id = ARGV[1]
local given = 0
for _, key in ipairs(KEYS) do
  local type = redis.call('TYPE', key).ok
  if type == 'string' and string.sub(redis.call('GET', key), 1, 40) == id then
    redis.call('DEL', key)
    redis.call('PUBLISH', key .. ':free', '')
    given = given + 1
  elseif type == 'hash' and redis.call('HDEL', key, id) == 1 then
    if redis.call('HLEN', key) <= 1 then redis.call('DEL', key) end
    redis.call('PUBLISH', key .. ':free', '')
    given = given + 1
  end
end
return given

-- Releases a lock by force and invalidates all earlier tokens.
-- KEYS: the lock, the token counter. Returns the number of holders and the new last token.
local type = redis.call('TYPE', KEYS[1]).ok
local holders = 0
if type == 'string' then
  holders = 1
elseif type == 'hash' then
  holders = math.max(redis.call('HLEN', KEYS[1]) - 1, 0)
end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[1] .. ':free', '')
local time = redis.call('TIME')
local micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
local token = math.max(tonumber(redis.call('GET', KEYS[2]) or '0') + 1, micros)
redis.call('SET', KEYS[2], string.format('%.0f', token))
return {holders, token}

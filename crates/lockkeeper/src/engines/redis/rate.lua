-- Takes permits from a rate limiter (generic cell rate algorithm, GCRA), by the clock of Redis.
-- KEYS: the limiter. ARGV: permits, microseconds between two permits, burst.
-- Returns 0, or the milliseconds after which to retry.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local interval = tonumber(ARGV[2])
local full = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now) + tonumber(ARGV[1]) * interval
local earliest = full - tonumber(ARGV[3]) * interval
if earliest > now then
  return math.ceil((earliest - now) / 1000)
end
-- A full limiter is equivalent to a new one, so the key may expire then.
redis.call('SET', KEYS[1], string.format('%.3f', full), 'PX', math.ceil((full - now) / 1000) + 1)
return 0

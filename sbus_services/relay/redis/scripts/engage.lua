-- Move a request to the list of requests that bus services run, until it is answered.
-- ARGV: taken, that list, raw, twin that sent it, uid. Returns the result, and the seconds left.
-- 'late': the request has expired, or no host has sent it.
local deadline = redis.call('ZSCORE', R .. 'open:' .. ARGV[4], ARGV[5])
local left = deadline and tonumber(deadline) - now() or 0
if redis.call('LPOS', ARGV[2], ARGV[3]) then return { 'engaged', stamp(left) } end
if not release(ARGV[1], ARGV[3]) then return { 'lost', '0' } end
if left <= 0 then
  count('requests-late')
  return { 'late', '0' }
end
redis.call('RPUSH', ARGV[2], ARGV[3])
count('requests-engaged')
return { 'engaged', stamp(left) }

-- Queue a response for a remote host. ARGV: taken, raw, uid, twin, body, seconds left, for how many seconds this relay holds it to send
-- it at once. Returns the result, and the token if it is held.
-- 'unasked': no such request is open; each is answered once.
local uid, twin = ARGV[3], ARGV[4]
if not release(ARGV[1], ARGV[2]) then return { 'lost', '' } end
if redis.call('ZREM', R .. 'open:' .. twin, uid) == 0 then
  count('answers-unasked')
  return { 'unasked', '' }
end
forget_asker(twin, uid)
return { 'ready', enqueue('r:' .. twin .. ':' .. uid, twin, ARGV[5], 0, now() + tonumber(ARGV[6]), tonumber(ARGV[7])) }

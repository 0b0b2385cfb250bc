-- An answer for another host is ready to be sent. ARGV: taken, raw, uid, twin, body, seconds left, seconds for which this relay
-- holds it, to send it at once. Says what became of it, and the token if it is held.
-- 'unasked': no such request waits; each is answered once.
local uid, twin = ARGV[3], ARGV[4]
if not release(ARGV[1], ARGV[2]) then return { 'lost', '' } end
if redis.call('ZREM', R .. 'open:' .. twin, uid) == 0 then
  count('answers-unasked')
  return { 'unasked', '' }
end
forget_asker(twin, uid)
return { 'ready', enqueue('r:' .. twin .. ':' .. uid, twin, ARGV[5], 0, now() + tonumber(ARGV[6]), tonumber(ARGV[7])) }

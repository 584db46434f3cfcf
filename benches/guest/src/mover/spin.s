# Looks at the counter until a gap is longer than allowed, or the time is over, with patterns in all registers that the loop
# does not need.
#
#   rdi: what is in main.rs the structure Spin; rsi: 0 with SSE only, 1 with AVX, 2 with AVX-512
.set BEFORE, 0x400
.set X87, 0xc00
.set CONTROLS, 0xc80
.set MASKS, 0xd00
.set OUT, 0x1000

.macro each32 what, base
    .irp reg, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
        \what \base, \reg
    .endr
.endm
.macro load512 base, reg
    vmovdqu64 zmm\reg, [rdi + \base + 64 * \reg]
.endm
.macro store512 base, reg
    vmovdqu64 [rdi + \base + 64 * \reg], zmm\reg
.endm
.macro each16 what, base
    .irp reg, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        \what \base, \reg
    .endr
.endm
.macro load256 base, reg
    vmovdqu ymm\reg, [rdi + \base + 64 * \reg]
.endm
.macro store256 base, reg
    vmovdqu [rdi + \base + 64 * \reg], ymm\reg
.endm
.macro load128 base, reg
    movdqu xmm\reg, [rdi + \base + 64 * \reg]
.endm
.macro store128 base, reg
    movdqu [rdi + \base + 64 * \reg], xmm\reg
.endm
.macro masks what
    .irp reg, 0,1,2,3,4,5,6,7
        \what \reg
    .endr
.endm
.macro load_mask reg
    kmovq k\reg, [rdi + MASKS + 8 * \reg]
.endm
.macro store_mask reg
    kmovq [rdi + OUT + MASKS + 8 * \reg], k\reg
.endm
.macro load_x87 reg
    fld tbyte ptr [rdi + X87 + 16 * \reg]
.endm
.macro store_x87 reg
    fstp tbyte ptr [rdi + OUT + X87 + 16 * (7 - \reg)]
.endm
.macro now
    rdtsc
    shl rdx, 32
    or rax, rdx
.endm
.macro pattern reg, value
    movabs \reg, \value
.endm
# Differences are collected in rdx.
.macro differs reg, value
    movabs rax, \value
    xor rax, \reg
    or rdx, rax
.endm
.macro patterns what
    \what rbx, 0x0b0b0b0b0badcafe
    \what rbp, 0x1badb002deadbeef
    \what r10, 0xaaaa5555aaaa5555
    \what r11, 0x0123456789abcdef
    \what r12, 0xfedcba9876543210
    \what r13, 0x8000000000000001
    \what r14, 0x7fffffffffffffff
    \what r15, 0x5a5a5a5aa5a5a5a5
.endm

.text
.globl spin
spin:
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
    push rdi
    push rsi
    fninit
    masks load_x87
    fldcw [rdi + CONTROLS]
    ldmxcsr [rdi + CONTROLS + 8]
    cmp esi, 1
    je 2f
    ja 3f
    each16 load128, BEFORE
    jmp 4f
2:  each16 load256, BEFORE
    jmp 4f
3:  each32 load512, BEFORE
    masks load_mask
4:  mov r8, [rdi]
    mov r9, [rdi + 8]
    patterns pattern
    now
    mov rsi, rax
    mov [rdi + 40], rax
5:  now
    mov rcx, rax
    sub rcx, rsi
    jb 6f
    cmp rcx, r9
    ja 7f
    mov rsi, rax
    cmp rax, r8
    jb 5b
    xor ecx, ecx
    jmp 7f
6:  mov rcx, -1
7:  mov r9, rax
    xor edx, edx
    patterns differs
    mov r8, rsi
    pop rsi
    pop rdi
    mov [rdi + 16], r8
    mov [rdi + 24], rcx
    mov [rdi + 32], rdx
    mov [rdi + 48], r9
    cmp esi, 1
    je 2f
    ja 3f
    each16 store128, OUT + BEFORE
    jmp 4f
2:  each16 store256, OUT + BEFORE
    vzeroupper
    jmp 4f
3:  each32 store512, OUT + BEFORE
    masks store_mask
    vzeroupper
4:  fnstcw [rdi + OUT + CONTROLS]
    stmxcsr [rdi + OUT + CONTROLS + 8]
    masks store_x87
    fninit
    ldmxcsr [rdi + CONTROLS + 16]
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    ret

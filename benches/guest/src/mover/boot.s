# The kernel of the guest: to user mode, interrupts, system calls. KVM may emulate it, so it has few instructions, none
# of which is unusual.
#
#   vCPU 0: long mode --copies the start code, INIT, start-up--> user mode
#   vCPU 1: real mode --> long mode --------------------------> user mode

.set PORT, 0x3f8
.set EOI, 0x80b
.set SVR, 0x80f
.set LVT_TIMER, 0x832
.set ICR, 0x830
.set START, 0x10000
.set STACKS, 0x201000
# Pages of vCPU 0 and 1; what is where in them is in main.rs.
.set OWN0, 0x300000
.set OWN1, 0x1300000

.macro write_msr index, low, high
    mov ecx, \index
    mov eax, \low
    mov edx, \high
    wrmsr
.endm

# Exceptions: 16 bytes each. Then the interrupts, 128 bytes each.
.section .vectors, "ax"
.set number, 0
.rept 32
    .balign 16
    push number
    jmp exception
    .set number, number + 1
.endr

.macro handler inner:vararg
    .balign 128
    push rax
    push rcx
    push rdx
    \inner
    write_msr EOI, 0, 0
    pop rdx
    pop rcx
    pop rax
    iretq
.endm

# 0x200 and 0x280: an interrupt of the other vCPU.
handler inc qword ptr [OWN0]
handler inc qword ptr [OWN1]
# 0x300: the timer of vCPU 1, which must not be early.
.macro timer
    rdtsc
    shl rdx, 32
    or rax, rdx
    cmp rax, qword ptr [OWN1 + 0x20]
    jae 3f
    inc qword ptr [OWN1 + 0x18]
3:  inc qword ptr [OWN1 + 0x10]
.endm
handler timer

# 0x380: a system call, by ud2: an exception is what every KVM delivers from user mode.
# rax 0: writes MSR edi, value rsi. 1: the debug registers to rsi. 2: writes port di, value sil. 3: reads port di to rax.
.balign 128
system_call:
    push rcx
    push rdx
    add qword ptr [rsp + 16], 2
    mov edx, edi
    cmp eax, 2
    je 5f
    ja 6f
    test eax, eax
    jnz 4f
    mov ecx, edi
    mov rax, rsi
    mov rdx, rsi
    shr rdx, 32
    wrmsr
    jmp 2f
6:  in al, dx
    jmp 2f
5:  mov eax, esi
    out dx, al
    jmp 2f
4:  mov rax, dr0
    mov [rsi], rax
    mov rax, dr1
    mov [rsi + 8], rax
    mov rax, dr2
    mov [rsi + 16], rax
    mov rax, dr3
    mov [rsi + 24], rax
    mov rax, dr7
    mov [rsi + 32], rax
2:  pop rdx
    pop rcx
    iretq

.text
# Tells the number, the error code if there is one, where it was, and rcx.
exception:
    pop rbx
    mov dx, PORT
    mov al, 'E'
    out dx, al
    lea eax, [rbx + 'A']
    out dx, al
    mov r8, rcx
    .rept 3
    pop rbx
    call hexadecimal
    .endr
    mov rbx, r8
    call hexadecimal
    mov al, 10
    out dx, al
3:  hlt
    jmp 3b

# rbx to the port.
hexadecimal:
    mov al, ' '
    out dx, al
    mov ecx, 16
4:  rol rbx, 4
    mov eax, ebx
    and eax, 15
    add eax, '0'
    cmp eax, '9'
    jbe 5f
    add eax, 'a' - '0' - 10
5:  out dx, al
    dec ecx
    jnz 4b
    ret

.globl _start
_start:
    cld
    lea rsi, [rip + start_code]
    mov edi, START
    mov ecx, 0x66
    rep movsb
    xor r12d, r12d
    mov esp, STACKS
    call set_up
    write_msr ICR, 0x4500, 1
    write_msr ICR, 0x4600 | START >> 12, 1
    xor edi, edi
    mov ecx, 0x30fff8
    jmp to_user

start_1:
    mov eax, 0x18
    mov ds, eax
    mov es, eax
    mov ss, eax
    mov r12d, 1
    mov esp, STACKS + 0x1000
    call set_up
    # The timer fires at a deadline, with vector 0x61.
    write_msr LVT_TIMER, 0x40061, 0
    mov rax, 0x0000111122223333
    mov dr0, rax
    mov rax, 0x0000333344445555
    mov dr1, rax
    mov rax, 0x0000666677778888
    mov dr2, rax
    mov rax, 0x000019990000aaaa
    mov dr3, rax
    # dr3 stops at the execution of what is never executed.
    mov eax, 0x4c0
    mov dr7, rax
    mov edi, 1
    mov ecx, 0x131fff8
    jmp to_user

# Descriptors, page tables, floating point, task and APIC of vCPU r12.
set_up:
    lgdt [rip + gdt_pointer]
    mov eax, r12d
    shl eax, 4
    lea rbx, [rip + idt_pointers]
    lidt [rbx + rax]
    lea rax, [rip + pml4]
    mov cr3, rax
    mov rax, cr4
    or eax, 0x620
    mov cr4, rax
    mov eax, 1
    xor ecx, ecx
    cpuid
    test ecx, 1 << 26
    jz 3f
    mov rax, cr4
    or eax, 0x40000
    mov cr4, rax
    mov eax, 0xd
    xor ecx, ecx
    cpuid
    and eax, 0xe7
    xor edx, edx
    xor ecx, ecx
    xsetbv
3:
    # The stack for interrupts, and where a map of ports would be: behind the end.
    mov ebx, r12d
    shl ebx, 12
    mov qword ptr [rbx + 0x200004], STACKS
    test ebx, ebx
    jz 2f
    mov qword ptr [rbx + 0x200004], STACKS + 0x1000
2:  mov word ptr [rbx + 0x200066], 0x68
    mov eax, r12d
    shl eax, 4
    add eax, 0x30
    ltr ax
    write_msr SVR, 0x1ff, 0
    ret

# Number in rdi, stack in rcx, as after a call. Interrupts are on.
to_user:
    push 0x23
    push rcx
    push 0x202
    push 0x2b
    lea rax, [rip + user]
    push rax
    iretq

# Runs at START, in real mode; its pointer to the descriptors is behind it.
.code16
start_code:
    cli
    .byte 0x2e, 0x66, 0x0f, 0x01, 0x16
    .word 0x60
    mov eax, 0x20
    mov cr4, eax
    .byte 0x66, 0xb8
    .long pml4
    mov cr3, eax
    mov ecx, 0xc0000080
    mov eax, 0x100
    xor edx, edx
    wrmsr
    mov eax, 0x80050033
    mov cr0, eax
    .byte 0x66, 0xea
    .long start_1
    .word 0x10
    .org start_code + 0x60
    .word 0x4f
    .long gdt
start_code_end:
.code64

.section .tables, "aw"
.balign 4096
pml4: .quad pdpt + 0x67
.balign 4096
pdpt:
.set number, 0
.rept 8
    .quad directory + number * 4096 + 0x67
    .set number, number + 1
.endr
.balign 4096
# 8 GiB for user mode, and all bits set that a processor would set.
directory:
.set number, 0
.rept 4096
    .quad number * 0x200000 + 0xe7
    .set number, number + 1
.endr
.balign 4096
.macro gate low
    .word \low, 0x10
    .byte 0, 0x8e
    .word 0x10
    .quad 0
.endm
.macro idt other
.set number, 0
.rept 256
    .if number == 6
        gate 0x380
    .elseif number < 32
        gate number*16
    .elseif number == 0x51
        gate \other
    .elseif number == 0x61
        gate 0x300
    .else
        .quad 0, 0
    .endif
    .set number, number + 1
.endr
.endm
idts:
idt 0x200
idt 0x280
gdt:
    .quad 0, 0, 0x00af9b000000ffff, 0x00cf93000000ffff, 0x00cff3000000ffff, 0x00affb000000ffff
    .quad 0x0000892000000067, 0, 0x0000892010000067, 0
gdt_pointer:
    .word 0x4f
    .quad gdt
.balign 16
idt_pointers:
    .word 0xfff
    .quad idts
    .balign 16
    .word 0xfff
    .quad idts + 0x1000
